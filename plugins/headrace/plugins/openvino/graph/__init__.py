"""OpenVINO's graph of a network: what is changed in it before it is compiled."""
