// SPDX-License-Identifier: Apache-2.0

package loop

// Change is the change between the results of two successive attempts.
type Change int

// These are the changes.
const (
	Unchanged Change = iota // the attempt had the same result as the last attempt
	Failed                  // the attempt failed, and the last attempt succeeded or failed for another reason
	Recovered               // the attempt succeeded, and the last attempt failed
)

// Failure is the result of the last attempt at an operation. A loop uses Failure to log each
// failure once. The zero value stands for success. Failure is not safe for concurrent use.
type Failure struct{ last Failures }

// Note records the error of an attempt, or nil, and returns the change.
func (f *Failure) Note(err error) Change { return f.last.Note("", err) }

// Failures contains the results of the last attempts at several named operations: the text of the
// last error by name. The caller deletes the names of operations that no longer exist.
type Failures map[string]string

// Note records the error of an attempt at the named operation, or nil, and returns the
// change.
func (f *Failures) Note(name string, err error) Change {
	before, failed := (*f)[name]
	switch {
	case err == nil && failed:
		delete(*f, name)
		return Recovered
	case err == nil, failed && before == err.Error():
		return Unchanged
	}
	if *f == nil {
		*f = Failures{}
	}
	(*f)[name] = err.Error()
	return Failed
}
