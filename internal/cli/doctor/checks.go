// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/container/runtimes"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

const (
	// staleReport is the greatest age of node.json. If a report is older than staleReport, the
	// patcher reports the node as late and withdraws its capacity.
	staleReport = 30 * time.Second
	// handlerNeeds is the time that a handler may take in addition to waiting
	// for a pod.
	handlerNeeds = 500 * time.Millisecond
	// syncNeeds is the time that synchronizing a node with many containers may
	// take.
	syncNeeds = 2 * time.Second
)

const (
	seeAgent      = "kubectl -n nri-vgpu-system get pods -o wide; kubectl -n nri-vgpu-system logs daemonset/nri-vgpu"
	reinstall     = "kubectl -n nri-vgpu-system rollout restart daemonset/nri-vgpu"
	onTheNode     = "run this on the node itself, as root; if this is the node, install containerd or CRI-O"
	editNRI       = "edit [plugins.'io.containerd.nri.v1.nri'] in /etc/containerd/config.toml, then: systemctl restart containerd"
	generateCDI   = "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml"
	updateRuntime = "update to containerd 2.1 or CRI-O 1.34, or newer"
)

func checkRuntime(f Facts) []finding.Finding {
	rt := f.Runtime
	if rt.Name == "" {
		return []finding.Finding{found(finding.Warning, onTheNode, "neither containerd nor CRI-O was found")}
	}
	// The version alone determines whether containerd and CRI-O support CDI.
	if !runtimes.Detect(rt.Name, rt.Version, "").CDI {
		return []finding.Finding{found(finding.Warning, updateRuntime, "%s %s accepts no CDI devices from plugins: images that set NVIDIA_VISIBLE_DEVICES, in pods that set it too, are refused", rt.Name, rt.Version)}
	}
	return ok("%s %s", rt.Name, rt.Version)
}

func checkNRI(f Facts) []finding.Finding {
	rt := f.Runtime
	fix := editNRI
	switch rt.Name {
	case "":
		fix = onTheNode
	case "cri-o":
		fix = "set enable_nri = true under [crio.nri] in /etc/crio/crio.conf.d/, then: systemctl restart crio"
	}
	if rt.SettingsErr == nil && rt.Settings.NRIDisabled {
		return []finding.Finding{found(finding.Problem, fix, "NRI is disabled, or accepts no plugins that connect (disable, disable_connections)")}
	}
	if rt.SocketErr != nil {
		return []finding.Finding{found(finding.Problem, fix, "no process listens on the NRI socket %s: %v", f.Config.NRI.SocketPath, rt.SocketErr)}
	}
	if rt.SettingsErr != nil {
		return []finding.Finding{found(finding.Warning, "", "NRI is on; its settings are not known: %v", rt.SettingsErr)}
	}
	return checkNRISettings(f, rt.Settings)
}

func checkNRISettings(f Facts, s Settings) []finding.Finding {
	var all []finding.Finding
	if need := f.Config.NRI.PodWait.Duration + handlerNeeds; s.RequestTimeout > 0 && s.RequestTimeout < need {
		all = append(all, found(finding.Problem, "set plugin_request_timeout = \"2s\": "+editNRI,
			"the runtime waits %v for a plugin, and nri.pod_wait is %v: the runtime would continue without the agent's answer", s.RequestTimeout, f.Config.NRI.PodWait))
	} else if s.RequestTimeout > 0 && s.RequestTimeout < syncNeeds {
		all = append(all, found(finding.Warning, "set plugin_request_timeout = \"2s\": "+editNRI,
			"the runtime waits %v for a plugin, which is too short to synchronize many containers", s.RequestTimeout))
	}
	if dir := f.Config.Guard.PluginDir; dir != "" && s.PluginPath != "" && s.PluginPath != dir {
		all = append(all, found(finding.Problem, fmt.Sprintf("set guard.plugin_dir = %q in config.toml, and the path of the volume \"plugins\" in the manifest", s.PluginPath),
			"the runtime loads plugins from %s, and the guard is installed in %s", s.PluginPath, dir))
	}
	if len(all) > 0 {
		return all
	}
	required := "not required"
	if slices.Contains(s.RequiredPlugins, f.Config.NRI.PluginName) {
		required = "required"
	}
	return ok("on; a request may take %v, registering %v; the plugin is %s by the runtime's validator", s.RequestTimeout, s.RegistrationTimeout, required)
}

func checkGuard(f Facts) []finding.Finding {
	g := f.Guard
	restart := "restart the container runtime: systemctl restart containerd (or crio)"
	switch f.Runtime.Name {
	case "containerd":
		restart = "systemctl restart containerd"
	case "cri-o":
		restart = "systemctl restart crio"
	}
	restart += "   # running containers continue"
	switch {
	case f.Config.Guard.PluginDir == "":
		return []finding.Finding{found(finding.Warning, "set guard.plugin_dir in config.toml", "the configuration disables the guard: containers that are created while the agent is down may see GPUs")}
	case g.Err != nil:
		return []finding.Finding{found(finding.Warning, "", "the state of the guard is unknown: %v", g.Err)}
	case g.Installed == "":
		return []finding.Finding{found(finding.Problem, reinstall, "the guard is not in %s: containers that are created while the agent is down may see GPUs", f.Config.Guard.PluginDir)}
	case g.Loaded == nil:
		return []finding.Finding{found(finding.Problem, restart, "the runtime has not loaded the guard yet: containers that are created while the agent is down may see GPUs")}
	case g.Loaded.Version != g.Installed:
		return []finding.Finding{found(finding.Warning, restart, "the runtime has loaded the guard of %s, and %s is installed", g.Loaded.Version, g.Installed)}
	}
	return ok("loaded, version %s, process %d", g.Loaded.Version, g.Loaded.PID)
}

func checkAgent(f Facts) []finding.Finding {
	switch {
	case f.Agent.Err != nil:
		return []finding.Finding{found(finding.Problem, seeAgent, "the agent does not answer on %s: %v", f.Config.HTTP.Address, f.Agent.Err)}
	case !f.Agent.Registered:
		return []finding.Finding{found(finding.Problem, seeAgent, "the agent runs, and the runtime has not registered it")}
	case f.Agent.Unadjusted > 0:
		return []finding.Finding{found(finding.Problem, "kubectl get events -A --field-selector reason=VGPUUnadjusted   # then delete these pods",
			"%d containers run without their limits: they were created while nri-vgpu was down", f.Agent.Unadjusted)}
	case f.Agent.Displaced > 0:
		return []finding.Finding{found(finding.Problem, "kubectl get events -A --field-selector reason=VGPUBypassed   # then delete these pods",
			"nri-vgpu's files were removed in %d containers, so programs started there run without limits", f.Agent.Displaced)}
	case f.Report.AgentVersion != "" && f.Report.AgentVersion != version.Version:
		return []finding.Finding{found(finding.Warning, "", "the agent is of version %s, and this vgpuctl of %s", f.Report.AgentVersion, version.Version)}
	}
	return ok("registered with the runtime")
}

func checkAPI(f Facts) []finding.Finding {
	switch {
	case f.Agent.Err != nil:
		return nil // unknown
	case !f.Agent.Synced:
		return []finding.Finding{found(finding.Problem, "kubectl auth can-i watch pods -A --as=system:serviceaccount:nri-vgpu-system:nri-vgpu; then check whether the node reaches the API server",
			"the agent does not know the node's pods: the agent lacks the right to watch pods (RBAC), or the API server does not answer")}
	}
	return ok("the agent knows the node's pods")
}

func checkDriver(f Facts) []finding.Finding {
	switch {
	case errors.Is(f.ReportErr, fs.ErrNotExist):
		return []finding.Finding{found(finding.Problem, seeAgent, "the agent has not reported the GPUs")}
	case f.ReportErr != nil:
		return []finding.Finding{found(finding.Problem, seeAgent, "the agent's report of the GPUs is unreadable: %v", f.ReportErr)}
	case f.Now.Sub(f.Report.Heartbeat) > staleReport:
		return []finding.Finding{found(finding.Problem, seeAgent, "the agent last looked at the GPUs %v ago: the node's capacity is withdrawn", f.Now.Sub(f.Report.Heartbeat).Round(time.Second))}
	case len(f.Report.GPUs) == 0 && len(undivided(f)) > 0:
		return undivided(f)
	case len(f.Report.GPUs) == 0 && f.DriverVersion == "":
		return []finding.Finding{found(finding.Problem, "install the NVIDIA driver on the node; with a driver container see driver.root in config.toml", "the node has neither GPUs nor NVIDIA's kernel driver")}
	case len(f.Report.GPUs) == 0:
		return []finding.Finding{found(finding.Problem, "nvidia-smi -L; if that shows GPUs, see driver.root in config.toml", "the agent sees no GPU, though the kernel has %s", f.DriverVersion)}
	}
	var all []finding.Finding
	for _, g := range f.Report.GPUs {
		if !g.Healthy && !g.Foreign { // checkForeign reports the others
			all = append(all, found(finding.Problem, "nvidia-smi -q -i "+g.Card()+"; dmesg | grep -i xid", "GPU %s (%s) is unhealthy and gets no new containers: %s", g.Number(), g.UUID, g.Reason))
		}
	}
	all = append(all, undivided(f)...)
	if len(all) > 0 {
		return all
	}
	return ok("%d GPUs, all healthy", len(f.Report.GPUs))
}

// undivided warns of GPUs in MIG mode without MIG devices.
func undivided(f Facts) []finding.Finding {
	var all []finding.Finding
	for _, g := range f.Report.LeftOut {
		if g.Undivided {
			all = append(all, found(finding.Warning, "docs/how-to/mig.md", "nothing of GPU %s (%s) is offered: %s", g.Number(), g.UUID, g.Reason))
		}
	}
	return all
}

// checkForeign checks that no other device plugin offers the GPUs that nri-vgpu offers.
func checkForeign(f Facts) []finding.Finding {
	if len(f.Report.GPUs) == 0 {
		return nil // checkDriver reports the reason
	}
	var all []finding.Finding
	for _, g := range f.Report.GPUs {
		if g.Foreign {
			all = append(all, found(finding.Problem, fmt.Sprintf("set node.gpus.exclude = [%q] in config.toml to leave the GPU to the other plugin, or take the GPU from the other plugin (docs/how-to/coexist.md)", g.UUID),
				"GPU %s (%s) gets no new containers: %s", g.Number(), g.UUID, g.Reason))
		}
	}
	if len(all) > 0 {
		return all
	}
	return ok("no other device plugin offers the GPUs that nri-vgpu offers")
}

// checkNames checks for exports of the driver that this version does not know.
func checkNames(f Facts) []finding.Finding {
	switch {
	case len(f.Report.GPUs) == 0:
		return nil // checkDriver reports the reason
	case f.NamesErr != nil:
		return []finding.Finding{found(finding.Warning, seeAgent, "the driver's exported names are unknown: %v", f.NamesErr)}
	}
	var all []finding.Finding
	for _, library := range f.Names.Libraries {
		if library.Error != "" {
			all = append(all, found(finding.Warning, seeAgent, "containers get the names of %s that this version knows, which may be more or fewer than the driver's: %s", library.Name, library.Error))
		}
	}
	if unknown := f.Names.Summary(); unknown != "" {
		all = append(all, found(finding.Warning, "install a newer nri-vgpu", "the driver exports names that this version does not know; %s", unknown))
	}
	if len(all) > 0 {
		return all
	}
	return ok("containers find the names that the driver exports")
}

// checkMPS checks the MPS daemon if the configuration requires MPS.
func checkMPS(f Facts) []finding.Finding {
	logs := "tail " + paths.MPSLogs(f.Config.Paths.StateDir) + "/*.log"
	mps := f.Config.Sharing.MPS
	switch {
	case f.Config.Sharing.Method != config.ShareByMPS:
		return ok("not used: sharing.method is %s", f.Config.Sharing.Method)
	case f.MPS.ProgramErr != nil:
		return []finding.Finding{found(finding.Problem, "install NVIDIA's driver with it, or set sharing.mps.root and sharing.mps.control_program in config.toml; or set sharing.method = \"time\"",
			"sharing.method is mps, and MPS's control program %s is missing; the agent refuses containers on these GPUs: %v", mps.ControlProgram, f.MPS.ProgramErr)}
	case f.MPS.PID == 0:
		return []finding.Finding{found(finding.Problem, logs+"; "+seeAgent, "sharing.method is mps, and the MPS control daemon was not started; the agent refuses containers on these GPUs")}
	case !f.MPS.Alive:
		return []finding.Finding{found(finding.Problem, logs+"; the agent restarts the daemon: "+seeAgent, "the MPS control daemon (process %d) has ended: the agent refuses containers on its GPUs until the daemon runs again; restart the daemon's clients", f.MPS.PID)}
	case f.Agent.Err == nil && !f.Agent.MPSReady:
		return []finding.Finding{found(finding.Problem, logs, "the MPS control daemon (process %d) does not answer: the agent refuses containers on its GPUs", f.MPS.PID)}
	}
	return ok("the control daemon runs, process %d", f.MPS.PID)
}

func checkCDI(f Facts) []finding.Finding {
	if f.Config.Injection.Method == config.InjectEnv || f.Config.Injection.Method == config.InjectDirect {
		return ok("not used: injection.method is %s", f.Config.Injection.Method)
	}
	if len(f.Report.GPUs) == 0 {
		return nil // unknown
	}
	var missing []string
	for _, g := range f.Report.GPUs {
		if device := f.Config.Injection.CDIKind + "=" + g.UUID; !slices.Contains(f.CDI, device) {
			missing = append(missing, device)
		}
	}
	level := finding.Warning // auto falls back to the environment variable
	if f.Config.Injection.Method == config.InjectCDI {
		level = finding.Problem
	}
	var all []finding.Finding
	if f.CDIErr != nil {
		all = append(all, found(finding.Warning, "correct or remove the named file", "a CDI spec is unreadable: %v", f.CDIErr))
	}
	if len(missing) > 0 {
		all = append(all, found(level, generateCDI, "no CDI spec in %s names %s", strings.Join(f.Config.Injection.CDISpecDirs, ", "), strings.Join(missing, ", ")))
	}
	if dirs := f.Runtime.Settings.CDISpecDirs; f.Runtime.SettingsErr == nil && len(dirs) > 0 && !slices.Contains(dirs, f.Config.Injection.CDIOutputDir) {
		all = append(all, found(finding.Problem, fmt.Sprintf("set injection.cdi_output_dir to one of %s", strings.Join(dirs, ", ")),
			"the runtime reads CDI specs from %s, and nri-vgpu's spec is in %s", strings.Join(dirs, ", "), f.Config.Injection.CDIOutputDir))
	}
	if len(all) > 0 {
		return all
	}
	return ok("the CDI specs name every GPU by its UUID")
}

// checkInjection checks that GPUs can be injected into containers, and only by
// nri-vgpu.
func checkInjection(f Facts) []finding.Finding {
	s := f.Runtime.Settings
	byVariable := f.Config.Injection.Method == config.InjectEnv
	if f.Config.Injection.Method == config.InjectAuto && len(f.CDI) == 0 {
		byVariable = true
	}
	switch {
	case f.Runtime.SettingsErr != nil || f.Runtime.Name == "":
		return []finding.Finding{found(finding.Warning, "", "the default runtime is not known")}
	case byVariable && !strings.Contains(s.DefaultRuntime, "nvidia"):
		return []finding.Finding{found(finding.Problem, "nvidia-ctk runtime configure --runtime=containerd --set-as-default && systemctl restart containerd; or: "+generateCDI,
			"nri-vgpu adds GPUs by NVIDIA_VISIBLE_DEVICES, which the default runtime, %q, ignores", s.DefaultRuntime)}
	}
	return ok("the default runtime is %q", s.DefaultRuntime)
}

func checkKubelet(f Facts) []finding.Finding {
	if f.KubeletErr != nil {
		return []finding.Finding{found(finding.Warning, "systemctl status kubelet", "the kubelet does not answer on its health port: %v", f.KubeletErr)}
	}
	return ok("answers")
}

func checkState(f Facts) []finding.Finding {
	var all []finding.Finding
	if !f.RunDirInMemory {
		all = append(all, found(finding.Warning, "mount a tmpfs on "+f.Config.Paths.RunDir, "%s is not in memory: records of containers would outlive a reboot, and the runtime would wait for the disk", f.Config.Paths.RunDir))
	}
	switch {
	case errors.Is(f.StateErr, fs.ErrNotExist):
		all = append(all, found(finding.Problem, seeAgent, "%s has no list of the pods that request GPUs, which the guard needs after a reboot", f.Config.Paths.StateDir))
	case f.StateErr != nil:
		all = append(all, found(finding.Problem, reinstall, "the list of the pods that request GPUs: %v", f.StateErr))
	}
	if len(all) > 0 {
		return all
	}
	return ok("%s is in memory, and %s has the list of pods that request GPUs", f.Config.Paths.RunDir, f.Config.Paths.StateDir)
}
