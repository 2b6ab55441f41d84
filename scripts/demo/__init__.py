"""The demo: one long text, five questions, two nodes. Its text is our own."""
