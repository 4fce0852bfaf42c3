package hook

import (
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// longest is more than the runtime and its plugins can tell each other in a message.
const longest = 4 << 20

// An answer that is too long is never sent, and the plugin gets no further question: no
// container of the node would start again.
func TestAnswersAreBounded(t *testing.T) {
	n := newNode(t, withVersion("v2.0.0"))
	n.pod("asks", "main=1024")
	n.pod("none", "main")
	// The longest text in a pod's spec, each byte of which takes four in quotes.
	text := strings.Repeat("\x7f", longest/4)
	for _, tt := range []struct {
		name, uid string
		change    func(*rspec.Spec)
	}{
		{"a volume that asks for a GPU", "none", addMount("/var/run/nvidia-container-devices/" + text)},
		{"a volume over our files", "asks", addMount("/usr/local/nri-vgpu/" + text)},
		{"capabilities of the driver, twice", "asks", addEnv(driverCapabilities+"=all", driverCapabilities+"="+text)},
	} {
		_, err := n.create(tt.uid, tt.change)
		if err == nil {
			t.Errorf("%s: it was created", tt.name)
		} else if len(err.Error()) > 4<<10 {
			t.Errorf("%s: it was refused with %d bytes", tt.name, len(err.Error()))
		}
		if took, err := n.ask(sandbox("none"), "main"); err != nil {
			t.Fatalf("%s: the next container waited for %v: %v", tt.name, took, err)
		}
	}
}
