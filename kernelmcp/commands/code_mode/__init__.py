"""What a person runs for code mode: the servers whose tools code may call, and what it called of them."""
