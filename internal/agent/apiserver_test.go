// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/util/flowcontrol"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

// TestRequestsToTheAPIServerAreLimited checks that all writes that tenants cause share one limit,
// and the reads of a handler have a separate limit.
func TestRequestsToTheAPIServerAreLimited(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	const content = `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c"}}]}`
	if err := os.WriteFile(kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := connect(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	events := c.writes.EventsV1().RESTClient().GetRateLimiter()
	documented.Bound(t, "Events about refusals", fmt.Sprintf("%v requests a second to the API server for all Events", events.QPS()))
	if pace := c.labels.CoreV1().RESTClient().GetRateLimiter().QPS(); pace < nodereport.PerSecond {
		t.Errorf("the labels of the mode fit may change %v times a second, and their client sends %v requests", nodereport.PerSecond, pace)
	}
	for range requestBurst {
		events.TryAccept()
	}
	for name, tt := range map[string]struct {
		limiter flowcontrol.RateLimiter
		spent   bool
	}{
		"events":    {events, true},
		"evictions": {c.writes.PolicyV1().RESTClient().GetRateLimiter(), true},
		"pods":      {c.reads.CoreV1().RESTClient().GetRateLimiter(), false},
		"answers":   {c.answers.CoreV1().RESTClient().GetRateLimiter(), false},
		"labels":    {c.labels.CoreV1().RESTClient().GetRateLimiter(), false},
	} {
		if spent := !tt.limiter.TryAccept(); spent != tt.spent {
			t.Errorf("%s: may not ask: %v", name, spent)
		}
	}
}
