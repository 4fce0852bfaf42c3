// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"fmt"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// TestMergeManyVariables checks that Merge is fast for many variables. A tenant may set as many
// variables as a pod and its ConfigMaps hold.
func TestMergeManyVariables(t *testing.T) {
	container := &api.Container{}
	for i := 0; container.SizeVT() < MostBytes; {
		for range 1000 {
			container.Env = append(container.Env, fmt.Sprintf("%x=", i))
			i++
		}
	}
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv("0", "1")
	adjust.AddEnv("NEW", "2")
	begin := time.Now()
	got := Merge(container, adjust).GetEnv()
	if took := time.Since(begin); took > time.Second {
		t.Errorf("%d variables took %v", len(container.Env), took)
	}
	if len(got) != len(container.Env)+1 || got[0] != "0=1" || got[len(got)-1] != "NEW=2" {
		t.Errorf("got %d variables from %d", len(got), len(container.Env))
	}
}
