// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"os"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/local"
	"github.com/nri-vgpu/nri-vgpu/internal/driverlib"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/interposer/symbols"
)

// unknown returns the number of names that the driver's library exports, and the names
// that the interposer does not know.
func unknown() (exported int, names []driverlib.Unknown, err error) {
	lib, err := local.OwnLibraries()
	if err != nil {
		return 0, nil, err
	}
	dir, err := os.MkdirTemp("", "vgpu-verify-")
	if err != nil {
		return 0, nil, err
	}
	defer os.RemoveAll(dir)
	variant, _ := driverlib.Make(lib, dir, driverlib.Find(os.Getenv)) // each library that could not be made contains its error
	for _, l := range variant.Libraries {
		if l.Name != paths.CUDALibrary {
			continue
		}
		if l.Error != "" {
			return 0, nil, fmt.Errorf("%s", l.Error)
		}
		exports, err := driverlib.ReadExports(l.Driver, driverlib.Kinds[0])
		return len(exports), l.Unknown, err
	}
	return 0, nil, nil
}

func (*run) namesFact() Fact {
	exported, names, err := unknown()
	if err != nil {
		return Fact{"names", err.Error()}
	}
	return Fact{"names", fmt.Sprintf("%d exported, %d unknown", exported, len(names))}
}

// namesRow judges whether the interposer refuses functions of the driver that the interposer does
// not know.
func (*run) namesRow() Row {
	_, names, err := unknown()
	if err != nil {
		return Row{Verdict: DoesNotHold, Bound: "the library is made for the driver", Why: err.Error()}
	}
	return judgeNames(names)
}

func judgeNames(names []driverlib.Unknown) Row {
	var refused []string
	for _, n := range names {
		if n.Treatment == symbols.Refuse {
			refused = append(refused, n.Name)
		}
	}
	r := row(Holds, "the library refuses no function as unknown", fmt.Sprintf("%d of %d unknown names refused", len(refused), len(names)))
	if len(refused) > 0 {
		r.Verdict, r.Why = DoesNotHold, strings.Join(refused, ", ")
	}
	return r
}
