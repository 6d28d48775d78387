"""The console: pages for people in a browser. It is a client of the server and stores nothing."""
