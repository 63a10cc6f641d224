"""Which layers OPENVINO claims: those of a form that bare OpenVINO was seen to compute right."""
