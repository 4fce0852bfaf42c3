// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/nri-vgpu/nri-vgpu/internal/deadline"
	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "time of a handler of agent, guard or stand-in", documented.Time(patience))
	documented.Bound(t, "NRI messages about all pods and containers of a node", fmt.Sprintf("%d MiB; a namespace takes at most half of the space that other namespaces leave, and at most %d MiB", maxMessageBytes>>20, maxMessageBytes>>21))
	documented.Bound(t, "handlers whose work has not ended", fmt.Sprintf("%d in each of agent, guard and stand-in", maxAtWork))
}

// TestRequestsThatHangAreBounded checks that the guard refuses a request at once while 64 requests
// hang.
func TestRequestsThatHangAreBounded(t *testing.T) {
	program := filepath.Join(t.TempDir(), "guard")
	settings := guardfile.SettingsFrom(config.Default())
	settings.InstallDir = t.TempDir()
	if err := settings.Write(program); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		g, hang := New(program), make(chan struct{})
		for range 64 {
			go func() {
				_, _ = g.within(t.Context(), Container{}, func(rules) (bool, error) { <-hang; return false, nil })
			}()
		}
		synctest.Wait()
		judged := func(rules) (bool, error) { return true, nil }
		if hide, err := g.within(t.Context(), Container{}, judged); hide || !errors.Is(err, deadline.ErrFull) {
			t.Errorf("got %v, %v", hide, err)
		}
		close(hang)
		synctest.Wait()
		if hide, err := g.within(t.Context(), Container{}, judged); !hide || err != nil {
			t.Errorf("once they have ended: %v, %v", hide, err)
		}
	})
}
