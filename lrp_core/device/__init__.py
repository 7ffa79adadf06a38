"""Memory, precision, copies and clocks of the devices that models run on."""
