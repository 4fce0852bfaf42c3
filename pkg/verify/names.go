package verify

import (
	"fmt"
	"os"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/interposer/symbols"
	"github.com/nri-vgpu/nri-vgpu/pkg/ctl"
	"github.com/nri-vgpu/nri-vgpu/pkg/driverlib"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

// unknown returns how many names the driver's library exports, and those that the
// interposer does not know.
func unknown() (exported int, names []driverlib.Unknown, err error) {
	lib, err := ctl.OwnLibraries()
	if err != nil {
		return 0, nil, err
	}
	dir, err := os.MkdirTemp("", "vgpu-verify-")
	if err != nil {
		return 0, nil, err
	}
	defer os.RemoveAll(dir)
	paths := driverlib.Find(os.Getenv)
	variant, _ := driverlib.Make(lib, dir, paths) // what could not be made has its error
	for _, l := range variant.Libraries {
		if l.Name != layout.CUDALibrary {
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

// namesRow judges whether a function of the driver is refused because nobody knows it.
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
	r := row(Holds, "no function is refused because it is not known", fmt.Sprintf("%d of %d unknown names refused", len(refused), len(names)))
	if len(refused) > 0 {
		r.Verdict, r.Why = DoesNotHold, strings.Join(refused, ", ")
	}
	return r
}
