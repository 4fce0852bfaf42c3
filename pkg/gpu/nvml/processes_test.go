// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// TestDriversWithWrongLists checks which drivers' lists of processes the package does not read.
func TestDriversWithWrongLists(t *testing.T) {
	for version, usable := range map[string]bool{
		"530.41.03": true, "535.43.02": false, "535.54.03": false, "535.86.10": false, "535.98": true, "535.104.05": true,
		"550.54.14": true, "580.159.04": true, "": true, "535": true,
	} {
		lib := &mock.Interface{SystemGetDriverVersionFunc: func() (string, gonvml.Return) { return version, gonvml.SUCCESS }}
		if err := usableLists(lib); (err == nil) != usable {
			t.Errorf("%q: %v", version, err)
		}
	}
}
