// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// waitMetric waits until a metric of the agent has a value.
func waitMetric(t *testing.T, within time.Duration, want float64, name string, labels map[string]string) {
	t.Helper()
	eventually.Succeeds(t, within, fmt.Sprintf("%s of %v", name, labels), func(ctx context.Context) error {
		got, err := bed.Metric(ctx, name, labels)
		if err == nil && got != want {
			err = fmt.Errorf("%v, want %v", got, want)
		}
		return err
	})
}

// background runs a command in a pod until the command or the test ends.
func background(t *testing.T, pod string, command ...string) (ended <-chan string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan string, 1)
	go func() {
		stdout, stderr, err := bed.ExecOutput(ctx, pod, command...)
		if err != nil {
			stdout += stderr + err.Error()
		}
		done <- stdout
	}()
	t.Cleanup(cancel)
	return done
}

// endAll kills all processes of a pod's container except the first process.
func endAll(t *testing.T, pod string) {
	t.Helper()
	if stdout, stderr, err := bed.ExecOutput(t.Context(), pod, "sh", "-c", "kill -9 -1"); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
}

// TestProcessesRegister checks that the agent knows a process from the first cuInit to the end of
// the process. The agent may be newer than the container.
func TestProcessesRegister(t *testing.T) {
	idle(t, "registers", 2048) // with room for two contexts
	processes := func(n float64) {
		t.Helper()
		waitMetric(t, patience, n, "nri_vgpu_container_processes", map[string]string{"namespace": "default", "pod": "registers", "container": "main"})
	}
	background(t, "registers", "fill", "--max", "64MiB", "--hold", "3600")
	background(t, "registers", "fill", "--max", "64MiB", "--hold", "3600")
	processes(2)
	endAll(t, "registers")
	processes(0)
	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	background(t, "registers", "fill", "--max", "64MiB", "--hold", "3600")
	processes(1)
}
