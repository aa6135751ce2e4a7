"""Tables and checks of the config's fields."""
