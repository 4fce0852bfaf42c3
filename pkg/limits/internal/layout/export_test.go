package layout

// Snake is the C name of a Go field, for the tests.
func Snake(name string) string { return snake(name, false) }
