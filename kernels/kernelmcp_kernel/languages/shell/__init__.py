"""The shell: bash as the library bashkit interprets it, in a confined Python; state is kept from cell to cell."""
