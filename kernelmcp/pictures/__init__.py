"""Pictures that a guest made: their headers are read here, they are unpacked by a confined process of its own."""
