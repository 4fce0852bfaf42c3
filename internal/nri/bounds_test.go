// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
)

// TestLongMessages checks that messages of MostBytes pass, that longer messages do not pass, and that
// errors contain both sizes.
func TestLongMessages(t *testing.T) {
	pod := func(n int) error {
		return CheckPod(&api.PodSandbox{Annotations: map[string]string{"a": strings.Repeat("x", n)}})
	}
	container := func(n int) error {
		return CheckContainer(&api.Container{Env: []string{strings.Repeat("x", n)}})
	}
	overhead := func(of interface{ SizeVT() int }) int { return of.SizeVT() - MostBytes }
	inPod := overhead(&api.PodSandbox{Annotations: map[string]string{"a": strings.Repeat("x", MostBytes)}})
	inContainer := overhead(&api.Container{Env: []string{strings.Repeat("x", MostBytes)}})
	for _, tt := range []struct {
		name     string
		check    func(int) error
		overhead int
	}{{"labels and annotations", pod, inPod}, {"environment, arguments and mounts", container, inContainer}} {
		if err := tt.check(MostBytes - tt.overhead); err != nil {
			t.Errorf("%s of %d bytes: %v", tt.name, MostBytes, err)
		}
		if err := tt.check(MostBytes - tt.overhead + 1); err == nil {
			t.Errorf("%s of %d bytes pass", tt.name, MostBytes+1)
		}
		if err := tt.check(1 << 20); err == nil || !strings.Contains(err.Error(), tt.name+" take 1024 KiB; above 480 KiB") {
			t.Errorf("%s of 1 MiB: %v", tt.name, err)
		}
	}
}
