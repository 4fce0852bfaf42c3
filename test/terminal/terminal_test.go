// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestBothTerminalsShowTheSame checks that the screens of our own terminal and of tmux agree.
func TestBothTerminalsShowTheSame(t *testing.T) {
	const command = `echo before; printf '\033[?1049h\033[?25l\033[?7l\033[H\033[2Kone is long\r\n\033[2K\033[1mtwo\033[0m\033[J'; read x; ` +
		`printf '\033[H\033[2K1\r\n\033[2K2\r\n\033[2K3\033[J'; read y; printf '\033[?7h\033[?25h\033[?1049l'; echo after $x $y; read z`
	sessions := []Session{startPty(t, 20, 4, os.Environ(), command)}
	if program, err := exec.LookPath("tmux"); err == nil {
		sessions = append(sessions, startTmux(t, program, 20, 4, os.Environ(), command))
	}
	for _, s := range sessions {
		shows := func(want string) {
			t.Helper()
			Await(t, s, 10*time.Second, want, func(screen string) bool { return strings.TrimRight(screen, "\n") == want })
		}
		shows("one is long\ntwo")
		s.Type("a\r")
		shows("1\n2\n3")
		s.Type("b\r")
		shows("before\nafter a b")
	}
}
