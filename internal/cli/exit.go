// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

// These constants are the exit statuses. docs/reference/cli.md lists them.
const (
	exitFailed       = 1
	exitDoesNotHold  = 1 // of verify
	exitNotVerified  = 2 // of verify
	exitAway         = 3
	exitNotStartable = 126 // of run, as in shells
	exitNotFound     = 127 // of run, as in shells
)

// statusError is an error with the exit status that it causes.
type statusError struct {
	error
	status int
}

// Unwrap returns the cause.
func (e statusError) Unwrap() error { return e.error }

// exitStatusOf returns the exit status of an error.
func exitStatusOf(err error) int {
	var status statusError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return status.status
	case errors.Is(err, agentapi.ErrAway):
		return exitAway
	}
	return exitFailed
}
