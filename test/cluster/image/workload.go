// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
)

// WorkloadName is the image in which tests run programs.
const WorkloadName = "localhost/nri-vgpu/workload:test"

// shellTools are the programs of this machine in a workload image.
var shellTools = []string{
	"cat", "chmod", "cp", "cut", "date", "dd", "df", "echo", "env", "false", "grep", "head", "id", "kill", "ln", "ls",
	"mkdir", "mktemp", "mv", "printf", "pwd", "readlink", "rm", "sed", "seq", "sleep", "sort", "stat", "tail", "test",
	"timeout", "touch", "tr", "true", "uname", "uniq", "wc",
}

// optionalTools are tools that BuildWorkload adds if the machine has the tools.
var optionalTools = []string{"awk", "bash", "mount", "nsenter", "pgrep", "ps", "strace", "umount", "unshare", "xargs"}

// BuildWorkload writes an archive of an image with a shell and the usual tools. /usr/local/bin
// contains all programs of a directory ("" means no programs), with their libraries. env is the
// image's environment, such as NVIDIA_VISIBLE_DEVICES=all.
func BuildWorkload(archive, name, programsDir string, env ...string) error {
	programs := map[string]string{}
	own, err := programsIn(programsDir)
	if err != nil {
		return fmt.Errorf("make image %s: %w", name, err)
	}
	maps.Copy(programs, own)
	for _, tool := range append(shellTools, optionalTools...) {
		if found, err := exec.LookPath(tool); err == nil {
			programs["/usr/bin/"+tool] = found
		}
	}
	for _, tool := range shellTools {
		if programs["/usr/bin/"+tool] == "" {
			return fmt.Errorf("make image %s: this machine has no %s", name, tool)
		}
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		return fmt.Errorf("make image %s: %w", name, err)
	}
	programs["/usr/bin/sh"] = shell
	files, err := Programs(programs)
	if err != nil {
		return fmt.Errorf("make image %s: %w", name, err)
	}
	return Build(archive, Spec{
		Name:  name,
		Plain: true,
		Files: append(BaseLayout(), files...),
		Env:   append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, env...),
		Cmd:   []string{"/bin/sh"},
	})
}

// programsIn returns the executable files of a directory, as programs of an image.
func programsIn(dir string) (map[string]string, error) {
	programs := map[string]string{}
	if dir == "" {
		return programs, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list programs: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, fmt.Errorf("list programs: %w", err)
		}
		if info.Mode().IsRegular() && info.Mode()&fs.FileMode(0o111) != 0 {
			programs["/usr/local/bin/"+e.Name()] = filepath.Join(dir, e.Name())
		}
	}
	return programs, nil
}
