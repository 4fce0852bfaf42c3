package runtimes

import (
	"strings"
)

// mostText bounds the text of an error that a runtime is answered with, in bytes.
// Kubelet shows it in an Event, which has room for about as much.
const mostText = 1024

// Brief returns an error without the middle of its text if that is long. Texts quote what
// tenants wrote, and a plugin whose answer is longer than a message of the runtime's may be
// sends none, and gets no further question.
func Brief(err error) error {
	text := err.Error()
	if len(text) <= mostText {
		return err
	}
	const mark, end = " … ", mostText / 4
	begin := mostText - len(mark) - end
	return &briefError{strings.ToValidUTF8(text[:begin], "") + mark + strings.ToValidUTF8(text[len(text)-end:], ""), err}
}

// briefError is an error with another text.
type briefError struct {
	text string
	err  error
}

func (e *briefError) Error() string { return e.text }

func (e *briefError) Unwrap() error { return e.err }
