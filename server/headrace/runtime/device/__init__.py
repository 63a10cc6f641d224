"""What a device is: the plugin's base classes and what they use."""
