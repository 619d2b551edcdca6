"""What keeps strangers from doing harm: the guarded way out, signatures, sealed secrets."""
