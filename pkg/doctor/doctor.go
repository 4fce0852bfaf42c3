// Package doctor looks at a node and says what keeps nri-vgpu from working on
// it, or from keeping its promises, each with what mends it. What is seen is
// gathered by thin probes; what that means is decided by pure checks.
package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/driverlib"
	"github.com/nri-vgpu/nri-vgpu/pkg/guard"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Problem Level = "problem"
)

// Finding is what one check found.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Mend is what to do, "" where there is nothing to be done.
	Mend string `json:"mend,omitempty"`
}

// Facts are what was seen of a node.
type Facts struct {
	Config config.Config
	Now    time.Time

	Runtime Runtime
	Guard   Guard
	Agent   Agent
	// Report is node.json; ReportErr why there is none.
	Report    nodereport.Report
	ReportErr error
	// CDI are the devices that CDI specs define; CDIErr what is wrong with
	// specs.
	CDI    []string
	CDIErr error
	// DriverVersion is the first line of what the NVIDIA kernel driver says, ""
	// where there is none.
	DriverVersion string
	// Names are what the driver exports beside what this version knows; NamesErr is
	// why that is not known.
	Names    driverlib.Variant
	NamesErr error
	// KubeletErr is why the kubelet does not answer its health probe.
	KubeletErr error
	// RunDirInMemory reports whether paths.run_dir is a tmpfs.
	RunDirInMemory bool
	// MPS is what was seen of the Multi-Process Service.
	MPS MPS
	// Contexts is what was measured of CUDA contexts.
	Contexts Contexts
	// StateErr is what is wrong with the list of pods that ask for GPUs.
	StateErr error
}

// Runtime is what was seen of the container runtime.
type Runtime struct {
	// Name is "containerd" or "cri-o", "" where neither was found.
	Name, Version string
	// SocketErr is why nobody listens on the NRI socket.
	SocketErr error
	// Settings are those of its configuration that matter; SettingsErr is why
	// they are not known.
	Settings    Settings
	SettingsErr error
}

// Settings are what a runtime is configured to do.
type Settings struct {
	NRIDisabled         bool
	PluginPath          string
	RequestTimeout      time.Duration
	RegistrationTimeout time.Duration
	RequiredPlugins     []string
	DefaultRuntime      string
	CDISpecDirs         []string
}

// Guard is what was seen of the guard.
type Guard struct {
	// Installed is the version of the program that the runtime will start, ""
	// where there is none.
	Installed string
	// Loaded is the one that it has started, if it has.
	Loaded *guard.Status
	Err    error
}

// Agent is what the agent says of itself.
type Agent struct {
	Err error
	// Registered with the runtime; Synced with the API server.
	Registered, Synced bool
	// Unadjusted is how many containers run without their limits.
	Unadjusted int
	// Displaced is in how many containers the files are not in their places that hold
	// them to their limits.
	Displaced int
	// Meters are the containers with a limit on time whose metering is checked.
	Meters []Meter
	// MPSReady: the Multi-Process Service's daemon answers.
	MPSReady bool
}

// MPS is what was seen of the Multi-Process Service.
type MPS struct {
	// ProgramErr is why its control program cannot be run.
	ProgramErr error
	// PID is its daemon's, as it was written down, 0 where none was started.
	PID int
	// Alive reports whether there is a process with this pid.
	Alive bool
}

// Examine says what the facts mean.
func Examine(f Facts) []Finding {
	var all []Finding
	for _, check := range []struct {
		name string
		look func(Facts) []Finding
	}{
		{"runtime", checkRuntime},
		{"nri", checkNRI},
		{"guard", checkGuard},
		{"agent", checkAgent},
		{"api", checkAPI},
		{"driver", checkDriver},
		{"names", checkNames},
		{"mps", checkMPS},
		{"cdi", checkCDI},
		{"injection", checkInjection},
		{"kubelet", checkKubelet},
		{"state", checkState},
		{"contexts", checkContexts},
		{"meter", checkMeter},
	} {
		for _, finding := range check.look(f) {
			finding.Check = check.name
			all = append(all, finding)
		}
	}
	return all
}

// Sound reports whether nothing is a problem.
func Sound(findings []Finding) bool {
	for _, f := range findings {
		if f.Level == Problem {
			return false
		}
	}
	return true
}

// WriteJSON writes findings as a list.
func WriteJSON(w io.Writer, findings []Finding) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(findings)
}

// WriteTable writes a line per finding, and below it what mends it.
func WriteTable(w io.Writer, findings []Finding) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Level, f.Check, f.Message)
		if f.Mend != "" {
			fmt.Fprintf(t, "\t\t→ %s\n", f.Mend)
		}
	}
	return t.Flush()
}

func ok(format string, args ...any) []Finding {
	return []Finding{{Level: OK, Message: fmt.Sprintf(format, args...)}}
}

// found is a finding that something mends.
func found(level Level, mend, format string, args ...any) Finding {
	return Finding{Level: level, Message: fmt.Sprintf(format, args...), Mend: mend}
}
