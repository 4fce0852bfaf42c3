// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// pauseSource is the program that holds a pod's namespaces. The program sleeps, reaps dead children
// if the program is the init process, and ends on a signal.
const pauseSource = `
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void quit(int signal_number) { (void)signal_number; _exit(0); }

static void reap(int signal_number)
{
	(void)signal_number;
	while (waitpid(-1, 0, WNOHANG) > 0)
		;
}

int main(void)
{
	struct sigaction on_quit = {.sa_handler = quit};
	struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};

	sigaction(SIGINT, &on_quit, 0);
	sigaction(SIGTERM, &on_quit, 0);
	sigaction(SIGCHLD, &on_child, 0);
	for (;;)
		pause();
}
`

// BuildPause writes an archive of a sandbox image. gcc compiles its only program.
func BuildPause(ctx context.Context, archive, name string) error {
	dir, err := os.MkdirTemp("", "pause-")
	if err != nil {
		return fmt.Errorf("make the sandbox image: %w", err)
	}
	defer os.RemoveAll(dir)
	source, program := filepath.Join(dir, "pause.c"), filepath.Join(dir, "pause")
	if err := os.WriteFile(source, []byte(pauseSource), 0o644); err != nil {
		return fmt.Errorf("make the sandbox image: %w", err)
	}
	out, err := exec.CommandContext(ctx, "gcc", "-static", "-Os", "-s", "-o", program, source).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make the sandbox image: compile its program (needs gcc and libc6-dev): %w: %s", err, out)
	}
	return Build(archive, Spec{
		Name:       name,
		Files:      []File{{Path: "/pause", Source: program, Mode: 0o755}},
		Entrypoint: []string{"/pause"},
	})
}
