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
	return row(judgeNames(names))
}

func judgeNames(names []driverlib.Unknown) (v Verdict, bound, figure string) {
	var refused []string
	for _, n := range names {
		if n.Treatment == symbols.Refuse {
			refused = append(refused, n.Name)
		}
	}
	bound = "no function is refused because it is not known"
	if len(refused) > 0 {
		return DoesNotHold, bound, fmt.Sprintf("%d: %s", len(refused), strings.Join(refused, ", "))
	}
	return Holds, bound, fmt.Sprintf("%d unknown functions pass", len(names))
}
