// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// slack is the shortest time-out of a mutant's tests.
const slack = 10 * time.Second

// timeout returns the time-out of a mutant's tests, given their duration without a mutant.
func timeout(unmutated time.Duration) time.Duration {
	return max(4*unmutated, slack)
}

// isolated runs a test program in a directory and reports whether it passed. A mutant may kill any
// process or leave processes behind. The program therefore runs in a process namespace and with a
// temporary directory. When the program exits, isolated ends the namespace and removes the
// directory. env extends the program's environment.
func isolated(ctx context.Context, limit time.Duration, dir string, env []string, program string, args ...string) (passed bool, output string, err error) {
	temp, err := os.MkdirTemp("", "m")
	if err != nil {
		return false, "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	run, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	command := []string{"--pid", "--fork", "--mount-proc", "--kill-child"}
	if os.Geteuid() != 0 {
		command = append(command, "--map-current-user")
	}
	// The shell is the namespace's init, because process 1 ignores signals that a test program
	// must not ignore.
	command = append(command, "sh", "-c", `"$@"; exit $?`, "sh", program)
	cmd := exec.CommandContext(run, "unshare", append(command, args...)...)
	var all bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &all, &all
	cmd.Env = append(append(os.Environ(), "TMPDIR="+temp), env...)
	cmd.WaitDelay = slack
	err = cmd.Run()
	if ctx.Err() != nil {
		return false, "", ctx.Err()
	}
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) && run.Err() == nil {
		return false, "", fmt.Errorf("run %s: %w", program, err)
	}
	return err == nil, all.String(), nil
}
