// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// TestManyRunningContainersAreAuditedInTime checks that the hook processes the runtime's list of
// containers in time, even if each pod has hundreds of containers.
func TestManyRunningContainersAreAuditedInTime(t *testing.T) {
	const pods, containers = 110, 256 // the bounds of kubelet and of one pod
	n := newNode(t)
	var running []runningContainer
	for p := range pods {
		uid := fmt.Sprint("u", p)
		names := make([]string, containers)
		for c := range names {
			names[c] = fmt.Sprint("c", c)
			running = append(running, runningContainer{
				Container: describe(sandbox(uid), &api.Container{Name: names[c]}), id: fmt.Sprint(uid, "-", c),
			})
		}
		n.pod(uid, names...)
	}
	begin := time.Now()
	if err := n.hook.synchronize(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > handlerPatience/2 {
		t.Errorf("%d containers took %v", len(running), took)
	}
}
