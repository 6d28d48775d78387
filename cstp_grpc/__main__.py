"""`python -m cstp_grpc` is the `cstp` command."""

from cstp_grpc.cli.main import main

if __name__ == "__main__":
    main()
