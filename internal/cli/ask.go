// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// mgctl returns the root command of vgpuctl under MetaGPU's name. mgctl only
// queries the agent.
func mgctl() *cobra.Command {
	root := &cobra.Command{
		Use:           paths.Mgctl,
		Version:       version.Version,
		Short:         "Show the users of this container's GPUs or, on a node, of all GPUs",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	metaGPUsFlags(root)
	get := getCommand("gpus")
	get.Aliases = []string{"g"}
	root.AddCommand(get, pingCommand(), bothVersionsCommand())
	return root
}

// metaGPUsFlags adds the flags of MetaGPU's mgctl that have no effect here, so that scripts work
// unchanged. The agent's socket needs no address, and the kernel identifies the client.
func metaGPUsFlags(root *cobra.Command) {
	const ignored = "accepted as in MetaGPU's mgctl, without effect"
	flags := root.PersistentFlags()
	flags.StringP("addr", "s", "", ignored+": the agent's socket has a fixed path")
	flags.StringP("token", "t", "", ignored+": the kernel identifies the client")
	flags.Bool("json-log", false, ignored)
	flags.Bool("verbose", false, ignored)
}

// socketFlag adds the flag for the path of the agent's socket.
func socketFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", "", "path of the agent's socket; default: the socket of this container or node")
}

// socketOr returns socket, or the default socket of the agent if socket is empty.
func socketOr(socket string) string {
	if socket == "" {
		return show.Socket(paths.ContainerRunDir)
	}
	return socket
}

func asking(cmd *cobra.Command, socket string) show.Asking {
	return show.Asking{Socket: socketOr(socket), Out: cmd.OutOrStdout()}
}

// getCommand returns the command that lists devices and processes in MetaGPU's format. aliases are
// additional names of the subcommand for devices.
func getCommand(aliases ...string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show GPUs and the processes that use them",
		Long: `Show GPUs and the processes that use them, as the node's agent measures them.

A container sees the GPUs and processes of its pod. Root on the node and the agent's pod
see all:

  kubectl -n nri-vgpu-system exec POD-OF-THE-NODE -- vgpuctl get processes -o wide

The numbers are the driver's; a process cannot change them.
Exit status: 0 success, 3 no agent answers, 1 any other error.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("name the objects to show: devices or processes; see --help")
		},
	}
	cmd.AddCommand(
		listCommand("processes", "Show the processes that use GPUs, with their GPU time, memory and limits",
			show.Asking.Processes, "process", "ps", "p"),
		listCommand("devices", "Show the GPUs, with used and total memory and shares", show.Asking.Devices, append(aliases, "device", "d")...))
	return cmd
}

func listCommand(name, short string, list func(show.Asking, context.Context) error, aliases ...string) *cobra.Command {
	var output, socket string
	var watch bool
	cmd := &cobra.Command{
		Use:     name,
		Aliases: aliases,
		Short:   short,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			a := asking(cmd, socket)
			a.Format, a.Watch = output, watch
			return list(a, ctx)
		},
	}
	outputFlag(cmd, &output, show.Formats)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "refresh every second; on a terminal, in place")
	socketFlag(cmd, &socket)
	return cmd
}

func pingCommand() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "ping",
		Short: "Test whether the node's agent answers",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return asking(cmd, socket).Ping(context.Background()) },
	}
	socketFlag(cmd, &socket)
	return cmd
}

func bothVersionsCommand() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of the agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), version.Version)
			pong, err := asking(cmd, socket).Agent(context.Background())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "agent %s on %s\n", pong.Version, pong.Node)
			return nil
		},
	}
	socketFlag(cmd, &socket)
	return cmd
}
