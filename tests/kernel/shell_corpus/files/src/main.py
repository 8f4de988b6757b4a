def main():
    # TODO: fix this
    print("hi")
