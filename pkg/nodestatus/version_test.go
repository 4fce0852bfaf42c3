// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/renameio/v2"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
)

// ofNewerAgent writes reports in a newer format, each with another heartbeat, until a test calls
// the returned function.
func (r *rig) ofNewerAgent() (stop func()) {
	r.t.Helper()
	end, done := make(chan struct{}), make(chan struct{})
	write := func() {
		content := fmt.Sprintf(`{"version":%d,"heartbeat":%q,"cards":[]}`, nodereport.FormatVersion+1, time.Now().Format(time.RFC3339Nano))
		if err := renameio.WriteFile(r.path, []byte(content), 0o644); err != nil {
			r.t.Error(err)
		}
	}
	write()
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			case <-time.After(100 * time.Millisecond):
				write()
			}
		}
	}()
	stop = sync.OnceFunc(func() { close(end); <-done })
	r.t.Cleanup(stop)
	return stop
}

// TestPatcherLeavesTheNodeBesideANewerAgent checks that a patcher does not change the Node while a
// newer agent writes reports that the patcher cannot read. When the reports stop, the patcher must
// withdraw the capacity.
func TestPatcherLeavesTheNodeBesideANewerAgent(t *testing.T) {
	t.Parallel()
	const staleAfter = 2 * time.Second
	cfg := nativeOnly()
	full := worth(cfg, testGPU("GPU-a", true))
	r := startRig(t, cfg, staleAfter)
	r.api.create()
	r.report(nil)
	r.await(full, polled)
	stop := r.ofNewerAgent()
	for end := time.Now().Add(2*staleAfter + polled); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		r.await(full, 0)
	}
	r.api.interfere(`{"status":{"capacity":{"nri-vgpu.io/vgpu-memory":"5"}}}`)
	r.await(full, promptly)
	if got := r.api.conditions(); got != "VGPUReady=True GPUsHealthy" {
		t.Errorf("the conditions are %q", got)
	}
	if n := strings.Count(r.log.String(), "another format version"); n == 0 || n > 3 {
		t.Errorf("the log has %d lines about a report that is not understood:\n%s", n, r.log)
	}
	stop()
	r.await(Resources{}, staleAfter+polled)
	r.report(nil)
	r.await(full, polled)
}

// TestPatcherStartsBesideANewerAgent checks that a patcher that starts beside a newer agent does
// not change the Node.
func TestPatcherStartsBesideANewerAgent(t *testing.T) {
	t.Parallel()
	r := startRig(t, nativeOnly(), time.Minute)
	r.ofNewerAgent()
	r.api.createWith(`{"metadata":{"annotations":{"nri-vgpu.io/advertised":"` + testMemory + `"}},
		"status":{"capacity":{"` + testMemory + `":"4096"},"allocatable":{"` + testMemory + `":"4096"},
		"conditions":[{"type":"VGPUReady","status":"True","reason":"GPUsHealthy"}]}}`)
	time.Sleep(3 * pollInterval)
	r.await(Resources{testMemory: 4096}, 0)
	if got := r.api.conditions(); got != "VGPUReady=True GPUsHealthy" {
		t.Errorf("the conditions are %q", got)
	}
	if _, err := os.Stat(r.path); err != nil {
		t.Fatal(err)
	}
}
