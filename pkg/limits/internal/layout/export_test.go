// SPDX-License-Identifier: Apache-2.0

package layout

// Snake returns the C name of a Go field, for the tests.
func Snake(name string) string { return snake(name, false) }
