// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStopReportsAProgramThatHasEndedByItself(t *testing.T) {
	runs := &program{name: "runs", path: "sleep", args: []string{"600"}}
	if err := runs.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := runs.stop(); err != nil {
		t.Errorf("a running program: %v", err)
	}
	ended := &program{name: "ended", path: "sh", args: []string{"-c", "echo no lease; exit 1"}}
	if err := ended.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, ended.process.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if err := ended.stop(); err == nil || !strings.Contains(err.Error(), "no lease") {
		t.Errorf("a program that has ended: %v", err)
	}
}
