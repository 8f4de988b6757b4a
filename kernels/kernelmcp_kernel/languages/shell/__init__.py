"""The shell: bash as interpreted by the library bashkit, in a confined Python; state is kept between cells."""
