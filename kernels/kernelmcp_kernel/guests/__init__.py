"""The guest as the kernel process sees it: started, asked, interrupted, limited, replaced."""
