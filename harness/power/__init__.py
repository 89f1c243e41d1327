"""Where watts come from: NVML, a recording, or nothing with the reason; and what samples them."""
