package detection

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/nri-vgpu/nri-vgpu/pkg/deadline"
	"github.com/nri-vgpu/nri-vgpu/pkg/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
)

// lookAtFiles looks in each container that has limits whether a program that is started
// there finds our files: from the first process, and from each that uses a GPU and has
// another mount namespace.
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

// findDisplaced returns what is amiss in the first of a container's mount namespaces in
// which something is.
func (d *Detector) findDisplaced(id string, pids []int, mounts []injected.Mount) error {
	namespaces := map[string]bool{}
	for _, pid := range pids {
		namespace, err := os.Readlink(filepath.Join(string(d.Proc), strconv.Itoa(pid), "ns/mnt"))
		if err != nil || namespaces[namespace] {
			continue // it has ended, or was looked at
		}
		namespaces[namespace] = true
		if err := d.filesAt(id, pid, mounts); err != nil {
			return err
		}
	}
	return nil
}

// filesAt looks for our files in the mount namespace of a process, if it is one of the
// container and stays it. Nothing is known where too many look-ups hang: those that do
// are their containers' own doing.
func (d *Detector) filesAt(id string, pid int, mounts []injected.Mount) error {
	started := d.startedIn(id, pid)
	if started == 0 {
		return nil
	}
	amiss := d.looks.CheckRunning(id, string(d.Proc), pid, mounts)
	if errors.Is(amiss, injected.ErrIncomplete) || errors.Is(amiss, deadline.ErrFull) || d.startedIn(id, pid) != started {
		return nil
	}
	return amiss
}

// startedIn returns when the process with an id started, if it is in the container now,
// and 0 if there is none.
func (d *Detector) startedIn(id string, pid int) uint64 {
	if process, err := d.Proc.Look(pid); err == nil && process.Container == id {
		return process.Started
	}
	return 0
}

// displaced returns the containers in which our files are not where we put them, by id.
func (p *picture) displaced() map[string]error {
	found := map[string]error{}
	for id, c := range p.containers {
		if c.displaced != nil {
			found[id] = c.displaced
		}
	}
	return found
}

// confirmDisplaced keeps of what earlier looks found that which a later one finds, too.
func confirmDisplaced(earlier, later map[string]error) map[string]error {
	for id := range later {
		if earlier[id] == nil {
			delete(later, id)
		}
	}
	return later
}

// tellDisplaced says once of each container, as long as it goes on, that our files are
// not where we put them.
func (d *Detector) tellDisplaced(p *picture, displaced map[string]error) {
	d.Metrics.displaced.Set(float64(len(displaced)))
	for id := range d.displaced {
		if displaced[id] == nil {
			delete(d.displaced, id)
		}
	}
	said := 0
	for id, amiss := range displaced {
		if d.displaced[id] || said == maxSaid {
			continue
		}
		said++
		d.displaced[id] = true
		c := p.containers[id]
		line := fmt.Sprintf("in container %s nri-vgpu's files have been taken away: programs that are started there are not held to its limits: %v: delete the pod, and see docs/security.md for what keeps its image from that", c.Container, amiss)
		d.Log.Warn(line, "namespace", c.Namespace, "pod", c.Pod)
		d.write(c.PodUID, events.VGPUBypassed, line)
	}
}
