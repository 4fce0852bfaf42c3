// SPDX-License-Identifier: Apache-2.0

package runtimes

import "strings"

// mostText bounds the text of an error that a plugin returns to a runtime, in bytes. Kubelet shows
// the text in an Event, whose message has room for about mostText bytes.
const mostText = 1024

// Brief returns an error whose text Brief shortens in the middle if the text is long. Texts quote
// tenants' input. If an answer is longer than the runtime's limit of a message, the plugin cannot
// send it, and gets no further request.
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
