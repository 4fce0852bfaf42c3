// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"
)

// uuidDashes are the positions of the dashes in 8-4-4-4-12.
var uuidDashes = []int{8, 13, 18, 23}

// parseUUID parses a device's name in NVML's form: "GPU-" or "MIG-" and a UUID
// in lower or upper case. parseUUID rejects the MIG names of drivers before
// R470, "MIG-GPU-<uuid>/<gi>/<ci>", which do not contain the device's own UUID.
func parseUUID(name string) (uuid [16]uint8, kind uint32, err error) {
	prefix, text, _ := strings.Cut(name, "-")
	switch prefix {
	case "GPU":
		kind = layout.KindGPU
	case "MIG":
		kind = layout.KindMIG
	default:
		return uuid, 0, fmt.Errorf("%w: UUID %q must start with GPU- or MIG-", ErrInvalid, name)
	}
	if len(text) != 36 {
		return uuid, 0, fmt.Errorf("%w: UUID %q is not of the form %s-8-4-4-4-12", ErrInvalid, name, prefix)
	}
	for _, i := range uuidDashes {
		if text[i] != '-' {
			return uuid, 0, fmt.Errorf("%w: UUID %q is not of the form %s-8-4-4-4-12", ErrInvalid, name, prefix)
		}
	}
	if _, err := hex.Decode(uuid[:], []byte(strings.ReplaceAll(text, "-", ""))); err != nil {
		return uuid, 0, fmt.Errorf("%w: UUID %q: %w", ErrInvalid, name, err)
	}
	return uuid, kind, nil
}

// formatUUID returns a device's name in the form that parseUUID parses. formatUUID returns false
// for an unknown kind.
func formatUUID(uuid [16]uint8, kind uint32) (string, bool) {
	h := hex.EncodeToString(uuid[:])
	text := strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
	switch kind {
	case layout.KindGPU:
		return "GPU-" + text, true
	case layout.KindMIG:
		return "MIG-" + text, true
	}
	return "", false
}
