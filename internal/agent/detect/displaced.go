// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/deadline"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
)

// lookAtFiles checks whether a program that starts in each container with limits finds our files.
// lookAtFiles checks the mount namespace of the first process, and of each process on a GPU.
func (d *Detector) lookAtFiles(p *picture) {
	for id, carried := range d.Containers.Carried() {
		c, ours := p.containers[id]
		if !ours || !c.interposed {
			continue
		}
		pids := []int{carried.PID}
		for _, s := range p.sightings {
			if s.Container == id && s.PID != carried.PID {
				pids = append(pids, s.PID)
			}
		}
		c.displaced = d.findDisplaced(id, pids, carried.Mounts)
		p.containers[id] = c
	}
}

// findDisplaced returns the error of the first mount namespace of a container in which our files
// are displaced.
func (d *Detector) findDisplaced(id string, pids []int, mounts []ourfiles.Mount) error {
	namespaces := map[string]bool{}
	for _, pid := range pids {
		namespace, err := os.Readlink(filepath.Join(string(d.Proc), strconv.Itoa(pid), "ns/mnt"))
		if err != nil || namespaces[namespace] {
			continue // the process has ended, or its namespace was checked
		}
		namespaces[namespace] = true
		if err := d.filesAt(id, pid, mounts); err != nil {
			return err
		}
	}
	return nil
}

// filesAt checks our files in the mount namespace of a process that stays in the container. filesAt
// returns nil if too many look-ups hang, because other containers cause the hanging look-ups.
func (d *Detector) filesAt(id string, pid int, mounts []ourfiles.Mount) error {
	started := d.startedIn(id, pid)
	if started == 0 {
		return nil
	}
	amiss := d.looks.CheckRunning(id, string(d.Proc), pid, mounts)
	if errors.Is(amiss, ourfiles.ErrIncomplete) || errors.Is(amiss, deadline.ErrFull) || d.startedIn(id, pid) != started {
		return nil
	}
	return amiss
}

// startedIn returns the start time of the process with an id if the process is in the container
// now, and 0 otherwise.
func (d *Detector) startedIn(id string, pid int) uint64 {
	if process, err := d.Proc.Look(pid); err == nil && process.Container == id {
		return process.Started
	}
	return 0
}

// displaced returns the containers in which our files are not where we mounted them, by id.
func (p *picture) displaced() map[string]error {
	found := map[string]error{}
	for id, c := range p.containers {
		if c.displaced != nil {
			found[id] = c.displaced
		}
	}
	return found
}

// confirmDisplaced keeps the containers that both the earlier checks and a later check found.
func confirmDisplaced(earlier, later map[string]error) map[string]error {
	for id := range later {
		if earlier[id] == nil {
			delete(later, id)
		}
	}
	return later
}

// reportDisplaced reports each container with displaced files, once while the files stay displaced.
func (d *Detector) reportDisplaced(p *picture, displaced map[string]error) {
	d.Metrics.displaced.Set(float64(len(displaced)))
	for id := range d.displaced {
		if displaced[id] == nil {
			delete(d.displaced, id)
		}
	}
	reports := 0
	for id, amiss := range displaced {
		if d.displaced[id] || reports == maxReported {
			continue
		}
		reports++
		d.displaced[id] = true
		c := p.containers[id]
		line := fmt.Sprintf("nri-vgpu's files were removed in container %s, so programs started there run without limits: %v: delete the pod; docs/explanation/security.md explains how to prevent this", c.Container, amiss)
		d.Log.Warn(line, "namespace", c.Namespace, "pod", c.Pod)
		d.write(c.PodUID, events.VGPUBypassed, line)
	}
}
