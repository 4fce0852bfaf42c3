package runtimes

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "what the runtime tells plugins of a pod or a container", documented.Bytes(MostBytes)+" of each")
	documented.Bound(t, "texts that a refusal quotes", documented.Bytes(mostText)+" for the refusal")
}
