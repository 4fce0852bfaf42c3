package guard

import (
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
)

// A refusal that is too long is never sent, and the guard gets no further question until
// the runtime starts again.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	// The longest text in a pod's spec, each byte of which takes four in quotes.
	destination := "/var/run/nvidia-container-devices/" + strings.Repeat("\x7f", 1<<20)
	if _, err := n.create(inPod("long"), &api.Container{Mounts: []*api.Mount{{Destination: destination}}}); err == nil || len(err.Error()) > 4<<10 {
		t.Errorf("a volume that asks for a GPU: %.200v", err)
	}
	if adjust, err := n.create(inPod("next"), &api.Container{}); err != nil || !hides(adjust) {
		t.Errorf("the next container: %v, %v", adjust, err)
	}
}
