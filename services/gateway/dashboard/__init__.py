"""The dashboard of a gateway: its pages, and one live feed for all who look."""
