"""What the runtime takes from the operating system: files, memory, processors."""
