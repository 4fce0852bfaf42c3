// SPDX-License-Identifier: Apache-2.0

package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// Holder is an owner of limits: a Kubernetes container or a group of runs.
type Holder struct {
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	Container string `json:"container,omitempty"`
	// Group is the name of a group of runs.
	Group string `json:"group,omitempty"`
	// Dir is the directory of the pages.
	Dir  string      `json:"dir"`
	GPUs []GPUStatus `json:"gpus"`
}

// GPUStatus contains the limit and the usage of one GPU, as the holder's processes
// account it.
type GPUStatus struct {
	UUID             string `json:"uuid"`
	MemoryLimitBytes uint64 `json:"memoryLimitBytes"`
	// MemoryUsedBytes includes the contexts.
	MemoryUsedBytes    uint64 `json:"memoryUsedBytes"`
	ContextMemoryBytes uint64 `json:"contextMemoryBytes"`
	// ComputeLimitPPM is omitted if GPU time has no limit.
	ComputeLimitPPM uint32 `json:"computeLimitPPM,omitempty"`
	// ComputeMaximumPPM is the holder's maximum if ComputeLimitPPM is a guarantee. The holder may
	// borrow idle time up to the maximum.
	ComputeMaximumPPM uint32          `json:"computeMaximumPPM,omitempty"`
	GPUTimeSeconds    float64         `json:"gpuTimeSeconds"`
	Refusals          uint64          `json:"refusals"`
	Processes         []ProcessStatus `json:"processes"`
}

// ProcessStatus is the usage of one GPU by one process.
type ProcessStatus struct {
	// PID is the ID in the holder's pid namespace.
	PID             uint32 `json:"pid"`
	Name            string `json:"name"`
	MemoryUsedBytes uint64 `json:"memoryUsedBytes"`
	MemoryPeakBytes uint64 `json:"memoryPeakBytes"`
}

// Places are the locations of limits.
type Places struct {
	// RunDir is /run/nri-vgpu of a container or a node.
	RunDir string
	// RunPages is $NRI_VGPU_DIR, "" outside a run.
	RunPages string
	// Groups is this user's directory of groups.
	Groups string
}

// Status returns the visible holders of limits. In a container or a run, the only visible holder is
// the container or the run. In other places, Status returns all containers of the node and all
// groups of this user. Status omits unreadable holders; the error names the holders.
func Status(p Places) ([]Holder, error) {
	if _, err := os.Lstat(filepath.Join(p.RunDir, limits.LimitsFile)); err == nil {
		return one(Holder{Dir: p.RunDir})
	}
	if p.RunPages != "" {
		return one(Holder{Group: filepath.Base(p.RunPages), Dir: p.RunPages})
	}
	all := []Holder{}
	var errs []error
	candidates, err := containersIn(filepath.Join(p.RunDir, "containers"))
	errs = append(errs, err)
	groups, err := groupsIn(p.Groups)
	errs = append(errs, err)
	for _, h := range append(candidates, groups...) {
		switch err := h.read(); {
		case errors.Is(err, fs.ErrNotExist): // the holder has ended, or has not begun
		case err != nil:
			errs = append(errs, err)
		default:
			all = append(all, h)
		}
	}
	return all, errors.Join(errs...)
}

func one(h Holder) ([]Holder, error) {
	if err := h.read(); err != nil {
		return []Holder{}, err
	}
	return []Holder{h}, nil
}

// read sets the GPUs from the pages.
func (h *Holder) read() error {
	devices, err := limits.Read(filepath.Join(h.Dir, limits.LimitsFile))
	if err != nil {
		return err
	}
	usage, err := limits.ReadUsage(filepath.Join(h.Dir, limits.UsageFile))
	if err != nil {
		return err
	}
	if len(usage.Devices) != len(devices) {
		return fmt.Errorf("%s: the limits page lists %d GPUs, the usage page lists %d", h.Dir, len(devices), len(usage.Devices))
	}
	for i, d := range devices {
		h.GPUs = append(h.GPUs, gpuStatus(d, usage, i))
	}
	return nil
}

func gpuStatus(d limits.Device, usage limits.Usage, i int) GPUStatus {
	used := usage.Devices[i]
	s := GPUStatus{
		UUID:               d.UUID,
		MemoryLimitBytes:   d.MemoryBytes,
		MemoryUsedBytes:    used.UsedBytes,
		ContextMemoryBytes: used.ContextBytes,
		GPUTimeSeconds:     used.GPUTime.Round(time.Microsecond).Seconds(),
		Refusals:           used.Refusals,
		Processes:          []ProcessStatus{},
	}
	if d.ComputePPM < limits.NoComputeLimit {
		s.ComputeLimitPPM, s.ComputeMaximumPPM = d.ComputePPM, d.MaximumPPM
	}
	for _, p := range usage.Processes {
		s.Processes = append(s.Processes, ProcessStatus{
			PID:             p.PID,
			Name:            p.Name,
			MemoryUsedBytes: p.Devices[i].UsedBytes,
			MemoryPeakBytes: p.Devices[i].PeakBytes,
		})
	}
	return s
}

// containersIn lists the containers of a node, in directories <pod UID>/<name>.
func containersIn(dir string) ([]Holder, error) {
	pods, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	var all []Holder
	for _, pod := range pods {
		names, err := readDir(filepath.Join(dir, pod))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			h := Holder{PodUID: pod, Container: name, Dir: filepath.Join(dir, pod, name)}
			h.name()
			all = append(all, h)
		}
	}
	return all, nil
}

// name sets the pod's name from the file that the agent wrote beside the pages. The name is for
// display only; on error the output shows the UID.
func (h *Holder) name() {
	data, err := os.ReadFile(filepath.Join(h.Dir, "assignment.json"))
	if err != nil {
		return
	}
	var written struct {
		Allocation struct{ Namespace, Pod string }
	}
	if json.Unmarshal(data, &written) == nil {
		h.Namespace, h.Pod = written.Allocation.Namespace, written.Allocation.Pod
	}
}

func groupsIn(dir string) ([]Holder, error) {
	names, err := readDir(dir)
	var all []Holder
	for _, name := range names {
		all = append(all, Holder{Group: name, Dir: filepath.Join(dir, name)})
	}
	return all, err
}

// readDir lists the directories in a directory. readDir returns an empty list if the directory is
// missing.
func readDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find limits: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// WriteTable writes a line for each holder and GPU.
func WriteTable(w io.Writer, holders []Holder) error {
	if len(holders) == 0 {
		_, err := fmt.Fprintln(w, "No program has limits here.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "HOLDER\tGPU\tMEMORY\tLIMIT\tTIME LIMIT\tGPU TIME\tREFUSALS\tPROCESSES")
	for _, h := range holders {
		for _, g := range h.GPUs {
			limit := "-"
			if g.ComputeLimitPPM > 0 {
				limit = show.PercentTo(g.ComputeLimitPPM, g.ComputeMaximumPPM)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%.1fs\t%d\t%d\n", h.title(), g.UUID,
				show.Mebibytes(g.MemoryUsedBytes), show.Mebibytes(g.MemoryLimitBytes), limit,
				g.GPUTimeSeconds, g.Refusals, len(g.Processes))
		}
	}
	return t.Flush()
}

func (h Holder) title() string {
	switch {
	case h.Group != "":
		return "run " + h.Group
	case h.Pod != "":
		return h.Namespace + "/" + h.Pod + "/" + h.Container
	case h.PodUID != "":
		return h.PodUID + "/" + h.Container
	default:
		return "this container"
	}
}
