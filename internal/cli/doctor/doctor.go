// SPDX-License-Identifier: Apache-2.0

// Package doctor examines a node. The package reports problems that keep nri-vgpu
// from working or from enforcing limits, each with its fix. Thin probes gather the
// facts; pure checks judge the facts.
package doctor

import (
	"fmt"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/driverlib"
	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// Facts are the gathered facts about a node.
type Facts struct {
	Config config.Config
	Now    time.Time

	Runtime Runtime
	Guard   Guard
	Agent   Agent
	// Report is node.json. ReportErr is the error of reading node.json.
	Report    nodereport.Report
	ReportErr error
	// CDI are the devices that CDI specs define. CDIErr contains the errors of
	// reading the specs.
	CDI    []string
	CDIErr error
	// DriverVersion is the first line of the NVIDIA kernel driver's version file, ""
	// without a driver.
	DriverVersion string
	// Names are the exports of the driver that this version does not know. NamesErr is the error of
	// reading the exports.
	Names    driverlib.Variant
	NamesErr error
	// KubeletErr is the error of the kubelet's health probe.
	KubeletErr error
	// RunDirInMemory reports whether paths.run_dir is a tmpfs.
	RunDirInMemory bool
	// MPS contains the facts about the Multi-Process Service.
	MPS MPS
	// Contexts contains the sizes of CUDA contexts.
	Contexts Contexts
	// StateErr is the error of reading the list of pods that request GPUs.
	StateErr error
}

// Runtime contains the facts about the container runtime.
type Runtime struct {
	// Name is "containerd" or "cri-o", "" if no runtime was found.
	Name, Version string
	// SocketErr is the error of connecting to the NRI socket.
	SocketErr error
	// Settings are the runtime's settings that doctor checks. SettingsErr is the error of reading
	// the settings.
	Settings    Settings
	SettingsErr error
}

// Settings are the settings of a runtime that doctor checks.
type Settings struct {
	NRIDisabled         bool
	PluginPath          string
	RequestTimeout      time.Duration
	RegistrationTimeout time.Duration
	RequiredPlugins     []string
	DefaultRuntime      string
	CDISpecDirs         []string
}

// Guard contains the facts about the guard.
type Guard struct {
	// Installed is the version of the program that the runtime will start, "" if no program is
	// installed.
	Installed string
	// Loaded is the status of the running guard, nil if the runtime has not started
	// it.
	Loaded *guardfile.Status
	Err    error
}

// Agent contains the facts that the agent's metrics report.
type Agent struct {
	Err error
	// Registered reports whether the runtime has registered the agent. Synced reports whether the
	// agent is synchronized with the API server.
	Registered, Synced bool
	// Unadjusted is the number of containers that run without their limits.
	Unadjusted int
	// Displaced is the number of containers in which files that enforce limits are
	// not in place.
	Displaced int
	// Meters are the containers with a limit on GPU time whose metering is checked.
	Meters []Meter
	// MPSReady reports whether the Multi-Process Service's daemon answers.
	MPSReady bool
}

// MPS contains the facts about the Multi-Process Service.
type MPS struct {
	// ProgramErr is the error of finding the service's control program.
	ProgramErr error
	// PID is the recorded process ID of the service's daemon, 0 if no daemon was started.
	PID int
	// Alive reports whether a process with the ID PID exists.
	Alive bool
}

// Examine runs all checks on the facts and returns their findings.
func Examine(f Facts) []finding.Finding {
	var all []finding.Finding
	for _, check := range []struct {
		name string
		look func(Facts) []finding.Finding
	}{
		{"runtime", checkRuntime},
		{"nri", checkNRI},
		{"guard", checkGuard},
		{"agent", checkAgent},
		{"api", checkAPI},
		{"driver", checkDriver},
		{"foreign", checkForeign},
		{"names", checkNames},
		{"mps", checkMPS},
		{"cdi", checkCDI},
		{"injection", checkInjection},
		{"kubelet", checkKubelet},
		{"state", checkState},
		{"contexts", checkContexts},
		{"meter", checkMeter},
	} {
		for _, result := range check.look(f) {
			result.Check = check.name
			all = append(all, result)
		}
	}
	return all
}

func ok(format string, args ...any) []finding.Finding {
	return []finding.Finding{{Level: finding.OK, Message: fmt.Sprintf(format, args...)}}
}

// found returns a finding with a fix.
func found(level finding.Level, fix, format string, args ...any) finding.Finding {
	return finding.Finding{Level: level, Message: fmt.Sprintf(format, args...), Fix: fix}
}
