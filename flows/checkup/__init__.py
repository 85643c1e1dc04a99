"""What `tutelage doctor` looks at. Reading changes nothing; a finding that is safe to mend says how."""
